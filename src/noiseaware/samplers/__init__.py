from . import interweaving as interweaving
from . import record_augmentation as record_augmentation
from .proposals import CrankNicolson as CrankNicolson
from .proposals import RandomWalk as RandomWalk
