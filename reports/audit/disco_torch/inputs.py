"""What the layers of this adapter share: the precision and the rollouts that the package wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from disco_torch.types import UpdateRuleInputs

from parity.adapters.torch import Tensors as Tensors
from port.adapter.inputs import experience

Settings = dict[str, Any]
LayerFn = Callable[[Tensors, Settings], Any]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default dtype for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def rollout(x: Tensors, **known: Any) -> UpdateRuleInputs:
    """The package's rollout from a layer's inputs; what a layer does not have is zero, or as it is `known`."""
    fields = vars(experience(x, **known))  # its record has the names of the original's, as the port's has
    shared = {name: value for name, value in fields.items() if name in UpdateRuleInputs.__dataclass_fields__}
    return UpdateRuleInputs(**{**shared, "is_terminal": fields["is_terminal"].to(x.dtype)})
