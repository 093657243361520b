"""Cannot be imported."""

import plait_absent  # noqa: F401
