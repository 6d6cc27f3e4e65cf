// `larder.c` as C++.
#include "larder.c"
