"""A LeNet that is small enough for tests, the variants of its experiment, and how long they are measured."""

from vgg16gpu_lab.experiments import s3
from vgg16gpu_lab.measure.measure import Effort
from vgg16gpu_lab.variants import variants

IMAGE = 16  # pixels a side: a third of the work of 28
STEPS = 60  # of training, where any net will do that tells digits apart
VARIANTS = {
    variant.name: variant for variant in variants() if variant.name in {method.variant for method in s3.METHODS}
}
EFFORT = Effort(seconds=0.0, samples=3, cold=False)
