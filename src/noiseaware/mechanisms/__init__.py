from .discrete_laplace import DiscreteLaplace as DiscreteLaplace
from .function_mechanism import FunctionMechanism as FunctionMechanism
from .gaussian import Gaussian as Gaussian
from .laplace import Laplace as Laplace
from .mechanism import Mechanism as Mechanism
