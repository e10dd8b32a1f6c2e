"""The Open Inference Protocol: requests as arrays, answers as messages, and the description of both."""
