from .bounded_features import Clamped as Clamped
from .bounded_features import Redacted as Redacted
from .counts import ClassTables as ClassTables
from .counts import ContingencyTable as ContingencyTable
from .counts import Count as Count
from .counts import Histogram as Histogram
from .regression_moments import RegressionMoments as RegressionMoments
from .statistic import Statistic as Statistic
