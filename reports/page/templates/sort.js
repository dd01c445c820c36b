// Tables sort by the column whose heading is pressed: up, down, and as they were. Without this they stay as they are.
"use strict";
const collator = new Intl.Collator("en", { numeric: true });
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

// The first number in a cell; null where there is none, and such cells stay at the end either way.
function number(text) {
  const found = text.replace(/,(?=\d{3})/g, "").match(/[-+]?(\d+\.?\d*(e[-+]?\d+)?|inf)/i);
  return found ? Number(found[0].replace(/inf/i, "Infinity")) : null;
}

function compare(a, b, isNumber, sign) {
  if (!isNumber) return sign * collator.compare(a, b);
  const [x, y] = [number(a), number(b)];
  if (x === null || y === null) return (x === null) - (y === null);
  return x === y ? 0 : sign * (x < y ? -1 : 1);
}

function makeSortable(table) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = NEXT[heading.getAttribute("aria-sort")];
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", order);
      const isNumber = heading.classList.contains("number");
      const text = (row) => row.cells[column].textContent.trim();
      const sign = order === "ascending" ? 1 : -1;
      body.append(...(order === "none" ? rows : [...rows].sort((a, b) => compare(text(a), text(b), isNumber, sign))));
    });
  });
}

document.querySelectorAll("table").forEach((table) => table.tHead && table.tBodies.length && makeSortable(table));
