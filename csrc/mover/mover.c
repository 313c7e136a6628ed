#include "mover/mover.h"
