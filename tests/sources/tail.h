
#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MILLPOND_MILLPOND_H */
