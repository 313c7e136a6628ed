/* The little of JSON that vfio-user's VERSION message needs: look a value up. */
#ifndef KVD_VFIO_JSON_H
#define KVD_VFIO_JSON_H

#include <stddef.h>
#include <stdint.h>

/*
 * The whole number at `path` (names of members from the outside in, ending with NULL) of a JSON text. -ENOENT: there is
 * no such member; -EPROTO: the text is no JSON, nested deeper than anybody nests it, or the value is not a whole number
 * from 0 to 2^64 - 1. Of two members with one name the first counts.
 */
int kvd_vfio_json_number(const char *text, size_t bytes, const char *const *path, uint64_t *out);

#endif
