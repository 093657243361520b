"""Says that it is loading, and takes for ever: to be interrupted."""

import time

print("waiting", flush=True)
time.sleep(60)
