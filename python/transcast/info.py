"""``python -m transcast.info`` prints what ``transcast.info()`` returns."""

import sys

from transcast._info import info

if __name__ == "__main__":
    print(info())
else:
    # `import transcast.info` binds what stands here to the name tc.info: let that stay the function.
    sys.modules[__name__] = info  # type: ignore[assignment]
