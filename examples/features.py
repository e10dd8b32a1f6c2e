"""Use a layer in the middle of a network: find pictures that are alike.

python examples/features.py

For your own model, `vgg16gpu info MODEL` names the layers; those of torchvision's VGG can be called
"features.22" or "relu4_3", too.
"""

import numpy as np

from vgg16gpu import Engine
from vgg16gpu.zoo.digits import DIGITS_MEAN, DIGITS_STD, heldout

pictures, _, digits = (part[:100] for part in heldout())  # (100, 32, 32, 1) bytes, and which digits they are

# What lies behind the layer is left out: neither computed nor kept in memory.
with Engine("digits", outputs=["classifier.1"], batch=50, mean=DIGITS_MEAN, std=DIGITS_STD) as engine:
    features = np.asarray(engine.run(pictures))  # (100, 128)

directions = features / np.linalg.norm(features, axis=1, keepdims=True)
likeness = directions @ directions.T  # cosine of the angle between each two
np.fill_diagonal(likeness, -1)  # nobody is his own neighbour
nearest = likeness.argmax(axis=1)

for i in range(5):
    j = nearest[i]
    print(f"picture {i}, a {digits[i]}, is most like picture {j}, a {digits[j]} (cosine {likeness[i, j]:.3f})")
print(f"{np.mean(digits == digits[nearest]):.1%} of {len(digits)} pictures are most like one of the same digit")
