"""Short names that keep the tables of definitions readable."""

from ottla.config.config_def import ConfigType, Importance, UpdateMode
from ottla.config.config_values import Between

BOOLEAN = ConfigType.BOOLEAN
CLASS = ConfigType.CLASS
DOUBLE = ConfigType.DOUBLE
INT = ConfigType.INT
LIST = ConfigType.LIST
LONG = ConfigType.LONG
PASSWORD = ConfigType.PASSWORD
SHORT = ConfigType.SHORT
STRING = ConfigType.STRING

HIGH = Importance.HIGH
MEDIUM = Importance.MEDIUM
LOW = Importance.LOW

CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
PER_BROKER = UpdateMode.PER_BROKER

AT_LEAST_0 = Between(0)
AT_LEAST_1 = Between(1)
MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_DOUBLE = 1.7976931348623157e308
