/* The pieces below the two transports: JSON, capabilities, what is told of a region, DMA mappings, names in sysfs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "vfio/internal.h"
#include "vfio/json.h"
#include "vfio/sys.h"

static int number(const char *text, uint64_t *out)
{
	static const char *const path[] = {"capabilities", "n", NULL};

	return kvd_vfio_json_number(text, strlen(text), path, out);
}

static void test_json(void **state)
{
	static const struct {
		const char *text;
		int err;
		uint64_t value;
	} cases[] = {
		{"{\"capabilities\":{\"n\":8}}", 0, 8},
		{" { \"a\" : [ 1.5e3 , { \"n\": 1 } , [] ], "
		 "\"capabilities\" : { \"m\":\"\\\"n\\\":9\", \"n\" : 7 } } ", 0, 7},
		{"{\"capabilities\":{\"n\":18446744073709551615}}", 0, UINT64_MAX},
		{"{\"capabilities\":{\"n\":3,\"n\":4}}", 0, 3},
		{"{\"n\":1,\"capabilities\":{\"o\":{\"n\":2}}}", -ENOENT, 0},
		{"{\"capabilities\":{}}", -ENOENT, 0},
		{"{}", -ENOENT, 0},
		{"{\"a\":true,\"b\":false,\"c\":null,\"d\":-1}", -ENOENT, 0},
		{"{\"capabilities\":{\"n\":18446744073709551616}}", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":-1}}", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":1.0}}", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":\"8\"}}", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":{}}}", -EPROTO, 0},
		{"{\"capabilities\":[]}", -EPROTO, 0},
		{"{\"capabilities\":1}", -EPROTO, 0},
		{"[]", -EPROTO, 0},
		{"", -EPROTO, 0},
		{"{", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":8}", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":8}}x", -EPROTO, 0},
		{"{\"capabilities\":{\"n\":8},}", -EPROTO, 0},
		{"{\"capabilities\" {\"n\":8}}", -EPROTO, 0},
		{"{\"a\":\"", -EPROTO, 0},
		{"{\"a\":\"\\", -EPROTO, 0},
		{"{\"a\":\"\n\"}", -EPROTO, 0},
		{"{\"a\":-}", -EPROTO, 0},
		{"{\"a\":tru}", -EPROTO, 0},
		{"{\"a\":#}", -EPROTO, 0},
		{"{\"a\":[1 2]}", -EPROTO, 0},
		{"{\"a\":[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}", -EPROTO, 0},
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t value = 0;

		print_message("%s\n", cases[i].text);
		assert_int_equal(number(cases[i].text, &value), cases[i].err);
		assert_true(value == cases[i].value);
	}
	/* A NUL is no white space. */
	assert_int_equal(kvd_vfio_json_number("{}\0", 3, (const char *const[]){NULL}, &(uint64_t){0}), -EPROTO);
}

/* Every beginning of a good text is refused, and read no further than it goes (the sanitizer looks). */
static void test_json_cut(void **state)
{
	static const char whole[] = "{\"x\":[1,\"\\u0041\",{}],\"capabilities\":{\"n\":12}}";
	static const char *const path[] = {"capabilities", "n", NULL};
	uint64_t value;

	(void)state;
	for (size_t bytes = 0; bytes < sizeof(whole) - 1; bytes++) {
		char *text = malloc(bytes ? bytes : 1);

		memcpy(text, whole, bytes);
		assert_int_equal(kvd_vfio_json_number(text, bytes, path, &value), -EPROTO);
		free(text);
	}
}

struct told {
	struct vfio_region_info info;
	struct vfio_info_cap_header other;
	struct vfio_region_info_cap_sparse_mmap sparse;
	struct vfio_region_sparse_mmap_area areas[2];
};

static struct told good_told(void)
{
	return (struct told){
		.info = {
			.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS,
			.index = 2,
			.size = 0x10000,
			.offset = 0x40000,
			.cap_offset = offsetof(struct told, other),
		},
		.other = {.id = 99, .version = 1, .next = offsetof(struct told, sparse)},
		.sparse = {.header = {.id = VFIO_REGION_INFO_CAP_SPARSE_MMAP, .version = 1}, .nr_areas = 2},
		.areas = {{.offset = 0x1000, .size = 0x2000}, {.offset = 0xf000, .size = 0x1000}},
	};
}

static void test_region(void **state)
{
	struct told told = good_told();
	struct kvd_vfio_part part;

	(void)state;
	assert_int_equal(kvd_vfio_part_parse(&part, 2, &told, sizeof(told)), 0);
	assert_true(part.info.readable && !part.info.writable && part.info.mappable);
	assert_true(kvd_vfio_part_mappable(&part, 0x1000, 0x2000));
	assert_true(kvd_vfio_part_mappable(&part, 0x2000, 0x1000));
	assert_true(kvd_vfio_part_mappable(&part, 0xf000, 0x1000));
	assert_false(kvd_vfio_part_mappable(&part, 0x1000, 0x2001));
	assert_false(kvd_vfio_part_mappable(&part, 0xfff, 0x10));
	assert_false(kvd_vfio_part_mappable(&part, 0x3000, 0x1000));
	assert_false(kvd_vfio_part_mappable(&part, 0x1000, UINT64_MAX));
	kvd_vfio_part_fini(&part);
	told.sparse.nr_areas = 0; /* nothing of it */
	assert_int_equal(kvd_vfio_part_parse(&part, 2, &told, sizeof(told)), 0);
	assert_false(part.info.mappable);
	told.info.flags &= ~(uint32_t)VFIO_REGION_INFO_FLAG_CAPS;
	assert_int_equal(kvd_vfio_part_parse(&part, 2, &told, sizeof(told.info)), 0);
	assert_true(kvd_vfio_part_mappable(&part, 0, 0x10000));
	kvd_vfio_part_fini(&part);
	told.info.size = 0; /* nothing there, whatever the flags say */
	assert_int_equal(kvd_vfio_part_parse(&part, 2, &told, sizeof(told)), 0);
	assert_false(part.info.mappable);
}

static void refuse(const struct told *told, size_t bytes)
{
	struct kvd_vfio_part part = {.fd = -1};

	assert_int_equal(kvd_vfio_part_parse(&part, 2, told, bytes), -EPROTO);
	assert_null(part.areas);
}

static void test_region_lies(void **state)
{
	struct told told = good_told();

	(void)state;
	refuse(&told, sizeof(told.info) - 1);
	refuse(&told, sizeof(told) - 1); /* the last area is not whole */
	told.info.index = 3;
	refuse(&told, sizeof(told));
	told = good_told();
	told.info.offset = UINT64_MAX; /* wraps */
	refuse(&told, sizeof(told));
	told.info.offset = INT64_MAX; /* no file goes so far */
	refuse(&told, sizeof(told));
	told = good_told();
	told.areas[1].offset = 0xf001; /* out of the region */
	refuse(&told, sizeof(told));
	told.areas[1] = (struct vfio_region_sparse_mmap_area){.offset = UINT64_MAX, .size = 2};
	refuse(&told, sizeof(told));
	told.areas[1] = (struct vfio_region_sparse_mmap_area){.offset = 1, .size = UINT64_MAX};
	refuse(&told, sizeof(told));
	told = good_told();
	told.sparse.nr_areas = UINT32_MAX;
	refuse(&told, sizeof(told));
	told = good_told();
	told.info.cap_offset = UINT32_MAX;
	refuse(&told, sizeof(told));
	told.info.cap_offset = sizeof(told) - 7; /* no header fits */
	refuse(&told, sizeof(told));
	told = good_told();
	told.other.next = offsetof(struct told, other); /* round and round */
	refuse(&told, sizeof(told));
	told.other.next = 4;
	refuse(&told, sizeof(told));
	told = good_told();
	refuse(&told, offsetof(struct told, sparse) + 10); /* a capability without its end */
}

/* splitmix64 */
static uint64_t draw(void)
{
	static uint64_t at = 7;
	uint64_t mixed = at += 0x9e3779b97f4a7c15ull;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
	return mixed ^ mixed >> 31;
}

enum { UNITS = 64, ROUNDS = 20000, UNIT_BYTES = 16 };

/* What the mappings should be: who owns each unit of the address space, and where its memory is. */
struct model {
	uint8_t first[UNITS]; /* unit where the mapping begins, plus one; 0: free */
	uint8_t count[UNITS]; /* units of the mapping that begins here */
	bool writable[UNITS];
	uint8_t *at[UNITS];
};

static uint64_t iova_of(uint64_t unit)
{
	return UINT64_MAX - (UNITS - unit) * UNIT_BYTES + 1; /* up to the very end */
}

static bool model_covers(const struct model *model, uint64_t unit, uint64_t count, bool writable)
{
	bool covers = unit + count <= UNITS;

	for (uint64_t i = unit; covers && i < unit + count; i++)
		covers = model->first[i] && (!writable || model->writable[i]);
	return covers;
}

static void model_copy(struct model *model, const struct kvd_vfio_dmas *dmas, uint64_t unit, uint64_t count)
{
	uint8_t bytes[UNITS * 2 * UNIT_BYTES];
	bool reads = draw() % 2;
	int err;

	if (reads) {
		err = kvd_vfio_dmas_read(dmas, iova_of(unit), bytes, count * UNIT_BYTES);
	} else {
		memset(bytes, (int)draw(), sizeof(bytes));
		err = kvd_vfio_dmas_write(dmas, iova_of(unit), bytes, count * UNIT_BYTES);
	}
	assert_int_equal(err, model_covers(model, unit, count, !reads) ? 0 : -EFAULT);
	for (uint64_t i = 0; !err && i < count; i++)
		assert_memory_equal(model->at[unit + i], bytes + i * UNIT_BYTES, UNIT_BYTES);
}

static void model_add(struct model *model, struct kvd_vfio_dmas *dmas, uint64_t unit, uint64_t count, uint8_t *memory)
{
	struct kvd_vfio_dma dma = {
		.iova = iova_of(unit), .bytes = count * UNIT_BYTES, .address = memory, .writable = draw() % 4 != 0,
	};
	bool free_place = true;

	if (unit + count > UNITS)
		return;
	for (uint64_t i = unit; i < unit + count; i++)
		free_place = free_place && !model->first[i];
	assert_int_equal(kvd_vfio_dmas_overlap(dmas, dma.iova, dma.bytes), !free_place);
	if (!free_place)
		return;
	assert_int_equal(kvd_vfio_dmas_reserve(dmas), 0);
	kvd_vfio_dmas_add(dmas, &dma);
	model->count[unit] = (uint8_t)count;
	for (uint64_t i = unit; i < unit + count; i++) {
		model->first[i] = (uint8_t)(unit + 1);
		model->writable[i] = dma.writable;
		model->at[i] = memory + (i - unit) * UNIT_BYTES;
	}
}

static void model_remove(struct model *model, struct kvd_vfio_dmas *dmas, uint64_t unit, uint64_t count)
{
	const struct kvd_vfio_dma *dma = kvd_vfio_dmas_find(dmas, iova_of(unit), count * UNIT_BYTES);
	bool exact = model->first[unit] == unit + 1 && model->count[unit] == count;

	assert_int_equal(dma != NULL, exact);
	if (!exact)
		return;
	kvd_vfio_dmas_remove(dmas, dma);
	memset(model->first + unit, 0, count);
}

static void test_dmas(void **state)
{
	static uint8_t memory[4 * UNITS * UNIT_BYTES];
	struct model model = {0};
	struct kvd_vfio_dmas dmas = {0};

	(void)state;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t unit = draw() % UNITS, count = 1 + draw() % 6;

		switch (draw() % 3) {
		case 0:
			model_add(&model, &dmas, unit, count, memory + draw() % (UNITS * UNIT_BYTES));
			break;
		case 1:
			model_remove(&model, &dmas, unit, model.first[unit] && draw() % 4 ? model.count[unit] : count);
			break;
		default:
			model_copy(&model, &dmas, unit, count);
		}
	}
	assert_int_equal(kvd_vfio_dmas_read(&dmas, 0, memory, 0), 0);
	kvd_vfio_dmas_fini(&dmas);
}

static void test_names(void **state)
{
	char folder[] = "/tmp/kvd-vfio-XXXXXX", path[64], name[16];

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/link", folder);
	assert_int_equal(symlink("../../somewhere/vfio-pci", path), 0);
	assert_int_equal(kvd_vfio_sys_link_name(path, name, sizeof(name)), 0);
	assert_string_equal(name, "vfio-pci");
	assert_int_equal(kvd_vfio_sys_link_name(path, name, 8), -ENAMETOOLONG);
	assert_int_equal(kvd_vfio_sys_link_name(folder, name, sizeof(name)), -EINVAL);
	assert_int_equal(kvd_vfio_sys_entry(folder, "vfio", name, sizeof(name)), -ENOENT);
	assert_int_equal(kvd_vfio_sys_entry(folder, "li", name, sizeof(name)), 0);
	assert_string_equal(name, "link");
	unlink(path);
	rmdir(folder);
	assert_int_equal(kvd_vfio_sys_entry(folder, "vfio", name, sizeof(name)), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json),        cmocka_unit_test(test_json_cut), cmocka_unit_test(test_region),
		cmocka_unit_test(test_region_lies), cmocka_unit_test(test_dmas),     cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
