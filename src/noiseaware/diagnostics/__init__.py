"""Is a posterior to be trusted, and how far is it from another? Numbers only, no pictures.

``sbc`` and ``coverage`` fit many simulated releases, ``check`` those like the one at hand, and
``compare`` runs two methods on it. What they are made of is here.
"""

from noiseaware.diagnostics.distances import median_distance, squared_mmd
from noiseaware.diagnostics.uniformity import (
    Uniformity,
    band,
    ranks,
    ranks_of_fits,
    thinned,
    uniformity,
)

__all__ = [
    "Uniformity", "band", "median_distance", "ranks", "ranks_of_fits", "squared_mmd", "thinned",
    "uniformity",
]  # fmt: skip
