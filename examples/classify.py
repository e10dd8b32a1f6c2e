"""Classify pictures: classify.py [MODEL PICTURES... [--preprocess NAME]].

python examples/classify.py                               # a handwritten digit, with the small net in the package
python examples/classify.py models/vgg16.onnx photos/     # a folder, with a model trained as torchvision's
python examples/classify.py flowers.onnx rose.jpg --preprocess unit  # of Keras, trained on values of 0 to 1
"""

import argparse

from vgg16gpu import classify
from vgg16gpu.zoo.digits import digit_sample

parser = argparse.ArgumentParser()
parser.add_argument("model", nargs="?", default="digits")
parser.add_argument("pictures", nargs="*", default=[digit_sample()])
parser.add_argument("--preprocess", help="what the model was trained on, where its file does not say so")
arguments = parser.parse_args()

for answer in classify(arguments.pictures, arguments.model, preprocess=arguments.preprocess):
    print(answer.name, answer.error)
    for best in answer.top:
        print(f"{best.probability:7.2%}  {best.label}")
