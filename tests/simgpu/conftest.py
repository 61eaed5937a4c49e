"""The tests of this folder need the plugin: `make test-simgpu`."""

import sys

collect_ignore_glob = [] if "tests.simgpu.plugin" in sys.modules else ["*.py"]
