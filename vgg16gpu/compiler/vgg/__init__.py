"""VGGs of torch: the architecture, and weights read from modules, state dicts, .pth and .safetensors files."""
