/* What every consumer does with Millpond: enough to need the allocator, the host device and Rust's
 * runtime. */
#ifndef USE_MILLPOND_H
#define USE_MILLPOND_H
#ifdef __cplusplus
extern "C" {
#endif

/* Returns 0 when all of it worked; says on stderr what did not. */
int use_millpond(void);

#ifdef __cplusplus
}
#endif
#endif
