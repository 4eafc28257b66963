#include <stdint.h>
#include <stdio.h>

#include "use_millpond.h"

int64_t second_sum(uint32_t n);

int main(void) {
  if (second_sum(100) != 4950) {
    fprintf(stderr, "the second library is broken\n");
    return 1;
  }
  return use_millpond();
}
