/* The layer ops/signed_hyperbolic with its VJP, as a program; parity/README.md has the protocol.
     cc -O2 -o signed_hyperbolic signed_hyperbolic.c -lm
     python -m parity check ops/signed_hyperbolic --impl cmd:./signed_hyperbolic */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h> /* sqrt of a float is a float */

static char *header, *data;               /* of the request: JSON without spaces, and the bytes of its tensors */
static char reply[1 << 20];               /* JSON of the answer */
static char *tensors[4096];               /* of the answer */
static size_t sizes[4096], count, total;  /* of its tensors, in bytes */

/* What follows a text in the request's header; %s in the text stands for the name. */
static char *after(const char *text, const char *name) {
  char wanted[256], *at;
  snprintf(wanted, sizeof wanted, text, name);
  if (!(at = strstr(header, wanted))) fprintf(stderr, "the request has no %s\n", wanted), exit(1);
  return at + strlen(wanted);
}
static double setting(const char *name) { return atof(after("\"settings/%s\":\"", name)); }
static int is(const char *key_and_value) { return strstr(header, key_and_value) != NULL; }
static void *input(const char *name) { /* double or float, int32_t, or bool; the last axis varies fastest */
  return data + strtoull(strstr(after("\"%s\":{", name), "offsets") + 10, NULL, 10);
}
static void *output(const char *name, const char *type, int rank, const int *shape) { /* type: F64 F32 I32 BOOL */
  size_t size = !strcmp(type, "F64") ? 8 : !strcmp(type, "BOOL") ? 1 : 4;
  char *at = reply + strlen(reply);
  at += sprintf(at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", count ? "," : "", name, type);
  for (int i = 0; i < rank; size *= shape[i++]) at += sprintf(at, i ? ",%d" : "%d", shape[i]);
  sprintf(at, "],\"data_offsets\":[%zu,%zu]}", total, total + size);
  total += sizes[count] = size;
  return tensors[count++] = (char *)calloc(size + 1, 1);
}

/* The layers: all that is particular to this program. */
#define LAYERS "ops/signed_hyperbolic"
#define ABOUT "\"name\":\"signed_hyperbolic\",\"description\":\"in C\",\"layers\":\"" LAYERS "\",\"vjps\":\"" LAYERS "\""

#define SIGNED_HYPERBOLIC(real, type)                                                                       \
  real *x = input("x"), *cotangent = is_vjp ? input("cotangent:out") : NULL;                             \
  real *out = output(is_vjp ? "x" : "out", type, 2, (int[]){T, B});                                      \
  for (int i = 0; i < T * B; i++) {                                                                      \
    real sign = (x[i] > 0) - (x[i] < 0), root = sqrt(fabs(x[i]) + 1), small = 1e-3;                      \
    out[i] = is_vjp ? cotangent[i] * (sign * sign / (2 * root) + small) : sign * (root - 1) + small * x[i]; \
  }

static void compute(int is_vjp) {
  int T = setting("T"), B = setting("B");
  if (is("\"dtype\":\"float64\"")) { SIGNED_HYPERBOLIC(double, "F64") } else { SIGNED_HYPERBOLIC(float, "F32") }
}

/* One request after the other, until the input ends. */
int main(void) {
  uint64_t size, length;
  while (fread(&size, 8, 1, stdin) && fread(&length, 8, 1, stdin)) {
    header = (char *)calloc(length + 1, 1), data = (char *)malloc(size - length), count = total = 0;
    if (!fread(header, length, 1, stdin) || (size > 8 + length && !fread(data, size - 8 - length, 1, stdin))) return 1;
    strcpy(reply, is("\"call\":\"hello\"") ? "{\"__metadata__\":{" ABOUT "}" : "{");
    if (!is("\"call\":\"hello\"")) compute(is("\"call\":\"vjp\""));
    length = strlen(strcat(reply, "}")), size = 8 + length + total;
    fwrite(&size, 8, 1, stdout), fwrite(&length, 8, 1, stdout), fwrite(reply, length, 1, stdout);
    for (size_t i = 0; i < count; free(tensors[i++])) fwrite(tensors[i], 1, sizes[i], stdout);
    fflush(stdout), free(header), free(data);
  }
}
