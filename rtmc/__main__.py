"""`python -m rtmc`: the same command line as the installed `rtmc`."""

import sys

from rtmc.cli import main

sys.exit(main())
