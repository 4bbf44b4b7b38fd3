"""`python -m trainmem`."""

import sys

from trainmem.cli import main

sys.exit(main())
