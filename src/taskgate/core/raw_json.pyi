"""The type of `msgspec.Raw` as it is: the stub of msgspec 0.22 declares a subclass of `bytes`, which it is not.

`bytes(raw)` copies its bytes. Compilers trust this type: with the other one, mypyc refuses every raw value.
"""

from typing import final

from typing_extensions import Buffer

@final
class Raw:
    def __new__(cls, msg: Buffer | str = ..., /) -> Raw: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def copy(self) -> Raw: ...
