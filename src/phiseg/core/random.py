"""Random seeds: all random numbers in the package come from seeds derived from strings and integers.

There is no global random state. The noise of training step 1,200 depends only on (seed, "noise", 1200), so a
resumed run, a run on other hardware and a run on several processes draw the same numbers.
"""

import hashlib
from numbers import Integral


def derive_seed(seed: int, *keys: str | int) -> int:
    """Return a 63-bit seed for the random stream identified by `seed` and `keys`.

    The keys are hashed together with their types, so ("a", 1) and ("a1",) are different streams. NumPy integers and
    strings are equivalent to Python's, and booleans to 0 and 1.

    >>> derive_seed(0, "noise", 1) == derive_seed(0, "noise", 1)
    True
    >>> derive_seed(0, "noise", 1) == derive_seed(0, "noise", 2)
    False
    """
    plain = [int(key) if isinstance(key, Integral) else str(key) for key in keys]
    digest = hashlib.sha256(repr((int(seed), *plain)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
