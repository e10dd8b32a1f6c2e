"""Classify a picture.

python examples/classify.py                              # a handwritten digit, with the small net in the package
python examples/classify.py models/vgg16.onnx photo.jpg  # a photo, with a model trained on ImageNet
"""

import sys

import numpy as np
from PIL import Image, ImageOps

from vgg16gpu import Engine
from vgg16gpu.scores import softmax
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, digit_sample
from vgg16gpu.zoo.labels import load as load_names

model, file = sys.argv[1:] or ("digits", digit_sample())
mean, std = (DIGITS_MEAN, DIGITS_STD) if model == "digits" else (None, None)  # None: ImageNet's

with Engine(model, mean=mean, std=std) as engine:
    _, channels, height, width = engine.program.input.shape
    picture = Image.open(file).convert("RGB" if channels == 3 else "L")
    pixels = np.asarray(ImageOps.fit(picture, (width, height)))
    (scores,) = engine.run(pixels.reshape(1, height, width, channels))  # bytes are normalised on the device

probabilities, names = softmax(scores), load_names(None, len(scores))
for best in np.argsort(-scores)[:5]:
    print(f"{probabilities[best]:7.2%}  {names[best]}")
print(f"Device: {engine.device_choice}")
