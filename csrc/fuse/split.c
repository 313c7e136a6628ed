#include "fuse/split.h"
