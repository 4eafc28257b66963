"""What must not be copied."""
from __future__ import annotations

from typing import Any, NoReturn


class Sole:
    """The owner of something that ends once. A copy would end it again, and leave the first one without it: `copy`, `deepcopy`
    and `pickle` raise TypeError."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot copy or pickle a {type(self).__name__}: it owns what it stands for")
