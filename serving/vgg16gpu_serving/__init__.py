"""An inference server: the Open Inference Protocol (KServe v2) over HTTP. See docs/serve.md.

Front ends (`front_end/`) take requests, put rows into slots of shared memory (`slots.py`) and their numbers into a
socket (`wire.py`); a process for each device (`device/`) makes batches of them. `parent/` starts them all, and
starts again who dies.
"""
