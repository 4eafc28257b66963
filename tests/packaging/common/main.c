#include "use_millpond.h"

int main(void) { return use_millpond(); }
