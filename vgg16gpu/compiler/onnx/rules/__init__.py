"""What each ONNX operator means, as ops."""
