"""Classify a picture: classify.py [MODEL PICTURE [PREPROCESSING]].

python examples/classify.py                              # a handwritten digit, with the small net in the package
python examples/classify.py models/vgg16.onnx photo.jpg  # a photo, with a model trained as torchvision's
python examples/classify.py flowers.onnx rose.jpg unit   # with one of Keras, trained on values of 0 to 1
"""

import sys
from pathlib import Path

import numpy as np

from vgg16gpu import Engine
from vgg16gpu.io.preprocessing import Preprocess
from vgg16gpu.io.scores import softmax
from vgg16gpu.pictures.images import load_image
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, digit_sample
from vgg16gpu.zoo.labels import load as load_names

model, file, *names = sys.argv[1:] or ("digits", str(digit_sample()))
of_digits = Preprocess(DIGITS_MEAN, DIGITS_STD, fit="stretch")
preprocess = of_digits if model == "digits" else Preprocess.named(*names or ("torchvision",))

with Engine(model, mean=preprocess.unit_mean, std=preprocess.unit_std) as engine:
    _, channels, height, width = engine.program.input.shape
    pixels = load_image(Path(file), channels, height, width, preprocess)  # bytes: they are normalised on the device
    (scores,) = engine.run(pixels[np.newaxis])

is_probability = scores.min() >= 0 and abs(scores.sum() - 1) < 1e-3  # the model ends in a softmax
probabilities, classes = scores if is_probability else softmax(scores), load_names(None, len(scores))
for best in np.argsort(-scores)[:5]:
    print(f"{probabilities[best]:7.2%}  {classes[best]}")
print(f"The {preprocess.line(height, width)}")
print(f"Device: {engine.device_choice}")
