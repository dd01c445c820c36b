"""What stands under the original's name is told apart: genuine, modified, absent, other."""

import hashlib
import json
import subprocess
import sys

import pytest

from reference import identity

FILES = {
    "__init__.py": "",
    "agent.py": "A = 1\n",
    "utils.py": "U = 2\n",
    "nets/__init__.py": "",
    "nets/a.py": "N\n",
}
DIGESTS = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in FILES.items()}
TABLE = identity.Table("https://example.org/disco_rl", "0123456789abcdef", DIGESTS)


@pytest.fixture
def package(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "disco_rl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "disco_rl"


def _identify(folder):
    return identity.identify(TABLE, [str(folder)])


def test_equal_files_are_genuine(package):
    found = _identify(package.parent)
    assert (found.state, found.location, found.commit) == ("genuine", package, TABLE.commit)
    assert identity.describe(found) == "original: genuine, commit 0123456"


def test_compiled_files_and_data_do_not_count(package):
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "agent.cpython-311.pyc").write_bytes(b"x")
    (package / "weights.npz").write_bytes(b"x")
    assert _identify(package.parent).state == "genuine"


def test_one_changed_byte_is_modified_and_named(package):
    (package / "agent.py").write_text("A = 2\n")
    (package / "nets" / "a.py").write_text("M\n")
    found = _identify(package.parent)
    assert (found.state, found.differing) == ("modified", ("agent.py", "nets/a.py"))
    assert identity.describe(found) == "original: MODIFIED (agent.py, nets/a.py)"
    assert "make original" in found.message


def test_a_missing_file_is_modified(package):
    (package / "utils.py").unlink()
    found = _identify(package.parent)
    assert (found.state, found.missing) == ("modified", ("utils.py",))
    assert "missing utils.py" in identity.describe(found)


def test_an_extra_file_is_modified(package):
    (package / "nets" / "hook.py").write_text("")
    found = _identify(package.parent)
    assert (found.state, found.extra) == ("modified", ("nets/hook.py",))


def test_nothing_is_absent(tmp_path):
    found = _identify(tmp_path)
    assert (found.state, found.location, identity.describe(found)) == ("absent", None, "original: absent")
    assert "make original" in found.message


def test_the_control_library_of_the_package_index_is_other(tmp_path):
    _control_library(tmp_path)
    found = _identify(tmp_path)
    assert found.state == "other"
    assert "unrelated control library" in found.message
    assert "pip uninstall disco-rl" in found.message and "make original" in found.message


def test_the_original_beside_the_control_library_is_still_judged_by_its_files(package):
    _control_library(package.parent)
    assert _identify(package.parent).state == "genuine"


def test_a_package_that_merely_bears_the_name_is_other(tmp_path):
    (tmp_path / "disco_rl").mkdir()
    (tmp_path / "disco_rl" / "__init__.py").write_text("")
    assert _identify(tmp_path).state == "other"


def test_finding_does_not_import(package):
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert _identify(package.parent).differing == ("__init__.py",)
    assert "disco_rl" not in sys.modules or sys.modules["disco_rl"].__file__ != str(package / "__init__.py")


def test_without_arguments_it_looks_where_import_would(package):
    table = package.parent / "table.json"
    table.write_text(json.dumps({"repository": "", "commit": "c", "files": DIGESTS}))
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(package.parent)!r}); import reference.identity as i; "
        f"print(i.identify(i.load_table(pathlib.Path({str(table)!r}))).state)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "genuine"


def test_the_table_lists_the_whole_original():
    table = identity.load_table()
    assert len(table.commit) == 40
    assert {"agent.py", "update_rules/disco.py", "networks/meta_nets.py"} <= table.files.keys()
    assert all(len(digest) == 64 for digest in table.files.values())


def _control_library(folder):
    info = folder / "disco_rl-0.0.1.dist-info"
    info.mkdir()
    (folder / "disco").mkdir()
    (folder / "disco" / "__init__.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: disco-rl\nVersion: 0.0.1\n")
    (info / "top_level.txt").write_text("disco\n")
    (info / "RECORD").write_text("disco/__init__.py,,\n")
