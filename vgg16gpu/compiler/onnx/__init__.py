"""The ONNX file: parsed, translated into ops, or refused; the names of its layers; its metadata."""
