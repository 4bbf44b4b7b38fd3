"""Entry point of a Hugging Face Space: serves the app on the address that the environment names."""

import sys
from pathlib import Path

try:
    import trainmem_space
except ModuleNotFoundError:
    # A Space that runs this file from a checkout has only space/ on the path.
    root = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(root / "space"), str(root / "shared")]
    import trainmem_space  # noqa: F401

from trainmem_space.server import serve

if __name__ == "__main__":
    serve()
