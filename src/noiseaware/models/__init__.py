from .beta_bernoulli import BetaBernoulli as BetaBernoulli
from .binomial import Binomial as Binomial
from .categorical_logistic_regression import (
    CategoricalLogisticRegression as CategoricalLogisticRegression,
)
from .dirichlet_categorical import DirichletCategorical as DirichletCategorical
from .exponential import Exponential as Exponential
from .exponential_family import ExponentialFamily as ExponentialFamily
from .function_model import FunctionModel as FunctionModel
from .gamma import Gamma as Gamma
from .geometric import Geometric as Geometric
from .hierarchical_bernoulli import HierarchicalBernoulli as HierarchicalBernoulli
from .linear_regression import LinearRegression as LinearRegression
from .logistic_regression import LogisticRegression as LogisticRegression
from .model import Model as Model
from .naive_bayes import NaiveBayes as NaiveBayes
from .normal import Normal as Normal
from .pareto import Pareto as Pareto
from .poisson import Poisson as Poisson
from .priors import CovariancePrior as CovariancePrior
from .priors import GammaPrior as GammaPrior
from .priors import NormalPrior as NormalPrior
from .priors import StddevPrior as StddevPrior
