"""What an ONNX file computes from constants alone, and what that may cost."""
