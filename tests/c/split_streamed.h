/* A rig with an object that is being filled. */
#ifndef KVD_TESTS_SPLIT_STREAMED_H
#define KVD_TESTS_SPLIT_STREAMED_H

#include "common/stream.h"
#include "split_rig.h"

enum { NODE = 5, PAGE = 64 << 10, PAGES = 24, TAIL = 777, FILE_BYTES = (PAGES - 1) * PAGE + TAIL };

extern uint8_t streamed_content[FILE_BYTES];
/* Pages 4 to 7 are a hole. */
extern const uint64_t streamed_runs[6];

struct streamed {
	struct rig rig;
	struct kvd_stream *stream;
	int event_fd;
	int fd; /* of the file being filled */
};

struct kvd_stream *streamed_new(int event_fd);
struct kvd_split_object streamed_spec(const struct streamed *s, const struct kvd_split_sums *sums);
int streamed_add(struct streamed *s);
void streamed_open(struct streamed *s, uint32_t readers);
void streamed_close(struct streamed *s);
/* As the mover does it: the bytes, then the mark. */
void streamed_land(struct streamed *s, uint64_t first, uint64_t count);
/* Until so many READs wait. */
void streamed_await(struct streamed *s, uint64_t count);

/* Wait until the reader has told the mover that it wants `page`; it does so after it counts who waits. */
void streamed_await_want(struct streamed *s, uint64_t page);

#endif
