"""Every step and every request of a run in a file for Perfetto. `observer` answers the hooks."""

from plait_trace.observer import Observer

observer = Observer()
