/* Answers that are well-formed messages and lie: about the version, capabilities, regions, what was asked. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vfio_server.h"

static char why[KVD_VFIO_TEXT_BYTES];

/* Open, and what comes of it. */
static int open_with(struct server *server)
{
	uint32_t fds = server_open_fds();
	kvd_vfio *vfio = NULL;
	int err;

	server_start(server);
	err = kvd_vfio_open_user(server->path, SERVER_DEADLINE_MS, why, &vfio);
	kvd_vfio_close(vfio);
	server_stop(server);
	server_free(server);
	assert_int_equal(server_open_fds(), fds);
	assert_int_equal(vfio != NULL, err == 0);
	return err;
}

static int open_with_json(const char *json)
{
	struct server server = {.json = json};

	return open_with(&server);
}

static void test_version(void **state)
{
	struct server major = {.major = 1}, minor = {.minor = 2}, lesser = {.minor = 0};

	(void)state;
	assert_int_equal(open_with(&major), -EPROTONOSUPPORT);
	assert_non_null(strstr(why, "another version"));
	assert_int_equal(open_with(&minor), -EPROTONOSUPPORT);
	assert_int_equal(open_with(&lesser), 0);
}

static void test_capabilities(void **state)
{
	struct server no_end = {.json = "{} ", .fault = FAULT_SHORT, .fault_command = KVD_VFU_VERSION};
	static char deep[KVD_VFU_VERSION_BYTES_MAX], long_text[KVD_VFU_VERSION_BYTES_MAX + 8];

	(void)state;
	assert_int_equal(open_with_json("{}"), 0);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_msg_fds\":1000000}}"), 0);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_data_xfer_size\":18446744073709551615}}"), 0);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_dma_maps\":18446744073709551615}}"), 0);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_data_xfer_size\":8}}"), 0);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_data_xfer_size\":7}}"), -EPROTO);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_data_xfer_size\":0}}"), -EPROTO);
	assert_int_equal(open_with_json("{\"capabilities\":{\"pgsizes\":0}}"), -EPROTO);
	assert_int_equal(open_with_json("{\"capabilities\":{\"pgsizes\":4294967296}}"), -EPROTO);
	assert_int_equal(open_with_json("{\"capabilities\":{\"max_msg_fds\":-1}}"), -EPROTO);
	assert_int_equal(open_with_json("not json"), -EPROTO);
	assert_int_equal(open_with(&no_end), -EPROTO); /* good JSON, but for the NUL */
	memset(deep, '[', sizeof(deep) - 1);
	assert_int_equal(open_with_json(deep), -EPROTO);
	memset(long_text, ' ', sizeof(long_text) - 1);
	memcpy(long_text, "{}", 2);
	assert_int_equal(open_with_json(long_text), -ENODEV);
	long_text[KVD_VFU_VERSION_BYTES_MAX - 1] = '\0';
	assert_int_equal(open_with_json(long_text), 0);
}

static void test_device(void **state)
{
	struct server no_pci = {.flags_off = VFIO_DEVICE_FLAGS_PCI}, few = {.regions = 7}, enough = {.regions = 8};
	struct server countless = {.regions = UINT32_MAX};

	(void)state;
	assert_int_equal(open_with(&no_pci), -EPROTO);
	assert_int_equal(open_with(&few), -EPROTO);
	assert_int_equal(open_with(&enough), 0);
	assert_int_equal(open_with(&countless), 0);
}

enum { AREAS = 1000 };

struct sparse_answer {
	struct vfio_region_info info;
	struct vfio_region_info_cap_sparse_mmap sparse;
	struct vfio_region_sparse_mmap_area areas[AREAS];
};

static struct sparse_answer *sparse_answer(void)
{
	struct sparse_answer *answer = calloc(1, sizeof(*answer));

	answer->info = (struct vfio_region_info){
		.argsz = sizeof(*answer),
		.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS,
		.cap_offset = sizeof(answer->info),
		.size = SERVER_BAR0_BYTES,
	};
	answer->sparse.header.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP;
	answer->sparse.header.version = 1;
	answer->sparse.nr_areas = AREAS;
	answer->areas[AREAS - 1].size = SERVER_PAGE_BYTES;
	return answer;
}

static int open_with_region(struct sparse_answer *answer, size_t bytes)
{
	struct server server = {.region0 = answer, .region0_bytes = bytes, .region0_full_bytes = answer->info.argsz};

	return open_with(&server);
}

/* A capability that is longer than was offered at first is asked for again. */
static void test_many_areas(void **state)
{
	struct sparse_answer *answer = sparse_answer();
	struct server server = {
		.region0 = answer, .region0_bytes = sizeof(*answer), .region0_full_bytes = sizeof(*answer),
	};
	kvd_vfio *vfio = NULL;
	void *bar;

	(void)state;
	server_start(&server);
	assert_int_equal(kvd_vfio_open_user(server.path, SERVER_DEADLINE_MS, why, &vfio), 0);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 0, SERVER_PAGE_BYTES, &bar), 0);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, SERVER_PAGE_BYTES, SERVER_PAGE_BYTES, &bar), -EINVAL);
	kvd_vfio_close(vfio);
	server_stop(&server);
	server_free(&server);
	free(answer);
}

static void test_regions(void **state)
{
	struct sparse_answer *answer = sparse_answer();

	(void)state;
	answer->areas[500] = (struct vfio_region_sparse_mmap_area){.offset = 4096, .size = 4097};
	assert_int_equal(open_with_region(answer, sizeof(*answer)), -EPROTO);
	answer->areas[500] = (struct vfio_region_sparse_mmap_area){.offset = UINT64_MAX, .size = UINT64_MAX};
	assert_int_equal(open_with_region(answer, sizeof(*answer)), -EPROTO);
	answer->areas[500] = (struct vfio_region_sparse_mmap_area){0};
	assert_int_equal(open_with_region(answer, sizeof(*answer) - 16), -EPROTO);
	answer->info.size = UINT64_MAX;
	assert_int_equal(open_with_region(answer, sizeof(*answer)), -EPROTO);
	answer->info.size = SERVER_BAR0_BYTES;
	answer->info.offset = INT64_MAX;
	assert_int_equal(open_with_region(answer, sizeof(*answer)), -EPROTO);
	answer->info.offset = 0;
	answer->info.index = 1;
	assert_int_equal(open_with_region(answer, sizeof(*answer)), -EPROTO);
	answer->info.index = 0;
	/* Always more than was offered. */
	answer->info.argsz = UINT32_MAX;
	assert_int_equal(open_with_region(answer, sizeof(*answer)), -EPROTO);
	answer->info.argsz = 20000;
	assert_int_equal(open_with_region(answer, sizeof(*answer)), 0);
	free(answer);
}

/* A file that is shorter than the region: the access says so, and nobody dies. */
static void test_short_file(void **state)
{
	struct sparse_answer *answer = sparse_answer();
	struct server server = {
		.region0 = answer, .region0_bytes = sizeof(*answer), .region0_full_bytes = sizeof(*answer),
	};
	kvd_vfio *vfio = NULL;
	void *bar;

	(void)state;
	answer->info.offset = 4 * SERVER_BAR0_BYTES;
	server_start(&server);
	assert_int_equal(kvd_vfio_open_user(server.path, SERVER_DEADLINE_MS, why, &vfio), 0);
	assert_int_equal(kvd_vfio_region_map(vfio, KVD_VFIO_BAR0, 0, SERVER_PAGE_BYTES, &bar), 0);
	assert_int_equal(kvd_vfio_load32(bar, &(uint32_t){0}), -ENODEV);
	kvd_vfio_close(vfio);
	server_stop(&server);
	server_free(&server);
	free(answer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_short_file), /* first: cmocka's handler must be there before ours */
		cmocka_unit_test(test_version),    cmocka_unit_test(test_capabilities), cmocka_unit_test(test_device),
		cmocka_unit_test(test_many_areas), cmocka_unit_test(test_regions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
