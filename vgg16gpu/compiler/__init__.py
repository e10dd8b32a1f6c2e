"""From an ONNX file to a Plan. Needs numpy alone and knows no device but its properties."""
