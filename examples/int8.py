"""Run a model in 8-bit integers, and see what that costs in accuracy.

python examples/int8.py

On the command line: `vgg16gpu calibrate MODEL --images FOLDER`, then `vgg16gpu infer --precision int8 ...`.
"""

import numpy as np

from vgg16gpu import Engine
from vgg16gpu.pictures.inputs import NamedInput
from vgg16gpu.runtime.calibration import calibrate, calibration_engine
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, heldout

pictures, _, digits = heldout()
known, unknown = slice(0, 40), slice(40, 100)

# Integers need a step for every value of the network: pictures like those to come tell how large the values get.
with calibration_engine("digits", mean=DIGITS_MEAN, std=DIGITS_STD) as engine:
    calibration = calibrate(engine, (NamedInput(f"picture {i}", x) for i, x in enumerate(pictures[known])))
for name, value in calibration.values.items():
    print(f"{name}: at most {value.largest:.3g}, in steps of {value.scale.step:.3g}")

for precision, scales in (("fp32", None), ("int8", calibration.scales)):
    with Engine("digits", precision=precision, scales=scales, batch=20, mean=DIGITS_MEAN, std=DIGITS_STD) as engine:
        answers = np.argmax(engine.run(pictures[unknown]), axis=1)
    print(f"{precision}: {np.mean(answers == digits[unknown]):.1%} of {len(answers)} other pictures are right")
