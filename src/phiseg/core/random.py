"""Random streams: every draw in the package comes from a seed that is derived from words and numbers.

Nothing keeps a running random state. The noise of training step 1,200 depends on (seed, "noise", 1200) and on
nothing else, so that a resumed run, a run on other hardware and a run on several processes all draw the same.
"""

import hashlib
from numbers import Integral


def derive_seed(seed: int, *keys: str | int) -> int:
    """Return a 63-bit seed for the stream that `keys` name under `seed`.

    The keys are hashed together with their types, so ("a", 1) and ("a1",) are different streams. Numbers and
    strings of numpy count as Python's own, and a truth value as 0 or 1.

    >>> derive_seed(0, "noise", 1) == derive_seed(0, "noise", 1)
    True
    >>> derive_seed(0, "noise", 1) == derive_seed(0, "noise", 2)
    False
    """
    plain = [int(key) if isinstance(key, Integral) else str(key) for key in keys]
    digest = hashlib.sha256(repr((int(seed), *plain)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
