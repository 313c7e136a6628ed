/* What a plan may be, and how an object falls into units by it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "format/internal.h"

static const uint8_t widths[KVD_FORMAT_DTYPES] = {
	[KVD_FORMAT_BYTES] = 1, [KVD_FORMAT_FP16] = 2,    [KVD_FORMAT_BF16] = 2,
	[KVD_FORMAT_WORDS] = 4, [KVD_FORMAT_DOUBLES] = 8,
};

uint32_t kvd_format_width(uint32_t dtype)
{
	return widths[dtype];
}

static bool array_fits(const struct kvd_format_region *region)
{
	uint64_t bytes;

	if (region->dtype != KVD_FORMAT_FP16 && region->dtype != KVD_FORMAT_BF16)
		return false;
	if (region->arrays == 0 || region->channels == 0 || region->channels > KVD_FORMAT_CHANNELS_MAX)
		return false;
	return !__builtin_mul_overflow(region->tokens, (uint64_t)region->channels * FORMAT_WIDE_BYTES, &bytes) &&
	       !__builtin_mul_overflow(bytes, (uint64_t)region->arrays, &bytes) && bytes == region->bytes;
}

static bool region_valid(const struct kvd_format_region *region)
{
	if (region->bytes == 0 || region->kind > KVD_FORMAT_INT4 || region->dtype >= KVD_FORMAT_DTYPES ||
	    region->role >= KVD_FORMAT_ROLES || region->reserved)
		return false;
	if (region->tokens == 0)
		return !kvd_format_narrows(region->kind) && region->arrays == 0 && region->channels == 0;
	return array_fits(region);
}

/* Regions that are kept exact fall into plain pieces, whatever is in them. */
static bool by_tokens(const struct kvd_format_region *region)
{
	return kvd_format_narrows(region->kind);
}

/* Tokens of a unit: whole blocks. */
static uint64_t unit_tokens(const struct kvd_format_region *region)
{
	uint32_t block_bytes = region->channels * KVD_FORMAT_BLOCK_TOKENS * FORMAT_WIDE_BYTES;
	uint32_t blocks = KVD_FORMAT_UNIT_BYTES / block_bytes;

	return (uint64_t)KVD_FORMAT_BLOCK_TOKENS * (blocks ? blocks : 1);
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

static uint64_t units_of(const struct kvd_format_region *region)
{
	uint64_t units;

	if (!by_tokens(region))
		return divide_up(region->bytes, KVD_FORMAT_UNIT_BYTES);
	if (__builtin_mul_overflow(divide_up(region->tokens, unit_tokens(region)), (uint64_t)region->arrays, &units))
		return UINT64_MAX;
	return units;
}

static uint32_t unit_bytes_max(const struct kvd_format_region *region)
{
	if (!by_tokens(region))
		return KVD_FORMAT_UNIT_BYTES;
	return (uint32_t)unit_tokens(region) * region->channels * FORMAT_WIDE_BYTES;
}

/* Look at each region, and count its units. */
static int survey(struct kvd_format_plan *plan)
{
	uint64_t at = 0, units = 0;

	for (uint32_t i = 0; i < plan->n_regions; i++) {
		const struct kvd_format_region *region = &plan->regions[i];
		uint64_t own;

		if (!region_valid(region) || region->offset != at || region->bytes > plan->object_bytes - at)
			return -EINVAL;
		at += region->bytes;
		own = units_of(region);
		if (own > KVD_FORMAT_UNITS_MAX - units)
			return -EINVAL;
		plan->first_unit[i] = (uint32_t)units;
		units += own;
		if (unit_bytes_max(region) > plan->unit_bytes_max)
			plan->unit_bytes_max = unit_bytes_max(region);
	}
	plan->first_unit[plan->n_regions] = (uint32_t)units;
	plan->n_units = (uint32_t)units;
	return at == plan->object_bytes ? 0 : -EINVAL;
}

int kvd_format_plan_init(const struct kvd_format_region *regions, uint32_t count, uint64_t object_bytes,
			 uint32_t page_bytes, kvd_format_plan **out)
{
	struct kvd_format_plan *plan;
	int err;

	if (count > KVD_FORMAT_REGIONS_MAX || page_bytes < KVD_FORMAT_PAGE_BYTES_MIN ||
	    page_bytes > KVD_FORMAT_PAGE_BYTES_MAX || (page_bytes & (page_bytes - 1)) ||
	    object_bytes > (uint64_t)KVD_FORMAT_UNITS_MAX * KVD_FORMAT_UNIT_BYTES)
		return -EINVAL;
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return -ENOMEM;
	plan->object_bytes = object_bytes;
	plan->page_bytes = page_bytes;
	plan->n_regions = count;
	plan->regions = malloc(sizeof(*regions) * (count ? count : 1));
	plan->first_unit = malloc(sizeof(*plan->first_unit) * ((size_t)count + 1));
	if (!plan->regions || !plan->first_unit) {
		kvd_format_plan_fini(plan);
		return -ENOMEM;
	}
	if (count)
		memcpy(plan->regions, regions, sizeof(*regions) * count);
	err = survey(plan);
	if (err) {
		kvd_format_plan_fini(plan);
		return err;
	}
	*out = plan;
	return 0;
}

void kvd_format_plan_fini(kvd_format_plan *plan)
{
	if (!plan)
		return;
	free(plan->regions);
	free(plan->first_unit);
	free(plan);
}

uint32_t kvd_format_plan_units(const kvd_format_plan *plan)
{
	return plan->n_units;
}

uint32_t kvd_format_plan_unit_bytes_max(const kvd_format_plan *plan)
{
	return plan->unit_bytes_max;
}

/* The last region whose `begin` is at most `key`. */
static uint32_t search(const struct kvd_format_plan *plan, uint64_t key, bool by_unit)
{
	uint32_t low = 0, high = plan->n_regions;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		uint64_t begin = by_unit ? plan->first_unit[middle] : plan->regions[middle].offset;

		if (begin <= key)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void unit_of_array(const struct kvd_format_region *region, uint64_t number, struct kvd_format_unit *out)
{
	uint64_t tokens = unit_tokens(region), per_array = divide_up(region->tokens, tokens);
	uint64_t row_bytes = (uint64_t)region->channels * FORMAT_WIDE_BYTES;
	uint64_t first = number % per_array * tokens;

	out->tokens = region->tokens - first < tokens ? region->tokens - first : tokens;
	out->channels = region->channels;
	out->offset += (number / per_array * region->tokens + first) * row_bytes;
	out->bytes = (uint32_t)(out->tokens * row_bytes);
}

int kvd_format_plan_unit(const kvd_format_plan *plan, uint32_t index, struct kvd_format_unit *out)
{
	const struct kvd_format_region *region;
	uint32_t at, number;

	if (index >= plan->n_units)
		return -EINVAL;
	at = search(plan, index, true);
	region = &plan->regions[at];
	number = index - plan->first_unit[at];
	*out = (struct kvd_format_unit){
		.offset = region->offset, .kind = region->kind, .dtype = region->dtype, .role = region->role};
	if (by_tokens(region)) {
		unit_of_array(region, number, out);
	} else {
		uint64_t first = (uint64_t)number * KVD_FORMAT_UNIT_BYTES, left = region->bytes - first;

		out->offset += first;
		out->bytes = left < KVD_FORMAT_UNIT_BYTES ? (uint32_t)left : KVD_FORMAT_UNIT_BYTES;
	}
	return 0;
}

int kvd_format_plan_find(const kvd_format_plan *plan, uint64_t offset, uint32_t *index)
{
	const struct kvd_format_region *region;
	uint64_t within, array_bytes, row_bytes;
	uint32_t at;

	if (offset >= plan->object_bytes)
		return -EINVAL;
	at = search(plan, offset, false);
	region = &plan->regions[at];
	within = offset - region->offset;
	if (!by_tokens(region)) {
		*index = plan->first_unit[at] + (uint32_t)(within / KVD_FORMAT_UNIT_BYTES);
		return 0;
	}
	row_bytes = (uint64_t)region->channels * FORMAT_WIDE_BYTES;
	array_bytes = region->tokens * row_bytes;
	*index = plan->first_unit[at] +
		 (uint32_t)(within / array_bytes * divide_up(region->tokens, unit_tokens(region)) +
			    within % array_bytes / row_bytes / unit_tokens(region));
	return 0;
}

uint64_t kvd_format_head_size(uint32_t n_regions, uint32_t n_units, uint64_t pages)
{
	uint64_t bytes = sizeof(struct format_head) + (uint64_t)n_regions * sizeof(struct kvd_format_region) +
			 (uint64_t)n_units * sizeof(struct format_entry) + pages * sizeof(uint32_t);

	return divide_up(bytes, KVD_FORMAT_ALIGN_BYTES) * KVD_FORMAT_ALIGN_BYTES;
}

uint64_t kvd_format_narrow_bytes(const struct kvd_format_unit *unit, uint32_t kind)
{
	uint64_t scale_bytes = unit->dtype == KVD_FORMAT_FP16 ? sizeof(uint16_t) : sizeof(float);
	uint64_t scales = divide_up(unit->tokens, KVD_FORMAT_BLOCK_TOKENS) * unit->channels;

	if (kind == KVD_FORMAT_INT4) /* with a zero a scale */
		return scales * (scale_bytes + 1) + unit->tokens * kvd_convert_int4_row_bytes(unit->channels);
	return scales * scale_bytes + unit->tokens * unit->channels;
}
