#include "vfio/json.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum { JSON_DEPTH_MAX = 16 };

struct json {
	const char *at;
	const char *end;
	const char *const *path; /* the name that is looked for next */
	uint64_t number;
	bool found;
};

static int value(struct json *json, uint32_t depth, bool wanted);

static void skip_space(struct json *json)
{
	while (json->at < json->end && strchr(" \t\r\n", *json->at) && *json->at)
		json->at++;
}

/* Take one character if it comes next, after white space. */
static bool take(struct json *json, char what)
{
	skip_space(json);
	if (json->at == json->end || *json->at != what)
		return false;
	json->at++;
	return true;
}

static bool digit(const struct json *json)
{
	return json->at < json->end && *json->at >= '0' && *json->at <= '9';
}

/* A string; escapes are stepped over, as no name that is looked for has one. */
static int string(struct json *json, const char **out, size_t *bytes)
{
	if (!take(json, '"'))
		return -EPROTO;
	*out = json->at;
	for (; json->at < json->end; json->at++) {
		if (*json->at == '"') {
			*bytes = (size_t)(json->at++ - *out);
			return 0;
		}
		if (*json->at == '\\' && ++json->at == json->end)
			break;
		if ((unsigned char)*json->at < ' ')
			break;
	}
	return -EPROTO;
}

static int word(struct json *json, const char *what)
{
	size_t bytes = strlen(what);

	if ((size_t)(json->end - json->at) < bytes || memcmp(json->at, what, bytes) != 0)
		return -EPROTO;
	json->at += bytes;
	return 0;
}

static int number(struct json *json, bool wanted)
{
	bool whole = *json->at != '-';
	uint64_t sum = 0;

	if (!whole)
		json->at++;
	if (!digit(json))
		return -EPROTO;
	for (; digit(json); json->at++) {
		if (__builtin_mul_overflow(sum, UINT64_C(10), &sum) ||
		    __builtin_add_overflow(sum, (uint64_t)(*json->at - '0'), &sum))
			whole = false;
	}
	while (json->at < json->end && *json->at && strchr("0123456789.eE+-", *json->at)) {
		json->at++;
		whole = false;
	}
	if (!wanted)
		return 0;
	if (!whole)
		return -EPROTO;
	json->number = sum;
	json->found = true;
	return 0;
}

static int member(struct json *json, uint32_t depth, bool wanted)
{
	const char *const *path = json->path;
	const char *name;
	size_t bytes;
	int err = string(json, &name, &bytes);

	if (err)
		return err;
	if (!take(json, ':'))
		return -EPROTO;
	wanted = wanted && !json->found && *path && strlen(*path) == bytes && memcmp(*path, name, bytes) == 0;
	if (wanted)
		json->path++;
	err = value(json, depth + 1, wanted);
	json->path = path;
	return err;
}

/* The members of an object, or the elements of an array. */
static int list(struct json *json, uint32_t depth, bool wanted, char closing)
{
	int err;

	if (take(json, closing))
		return 0;
	do {
		err = closing == '}' ? member(json, depth, wanted) : value(json, depth + 1, false);
		if (err)
			return err;
	} while (take(json, ','));
	return take(json, closing) ? 0 : -EPROTO;
}

/* `wanted`: it stands where the path has led so far. */
static int value(struct json *json, uint32_t depth, bool wanted)
{
	bool last = wanted && !*json->path;
	const char *text;
	size_t bytes;

	skip_space(json);
	if (json->at == json->end || depth > JSON_DEPTH_MAX)
		return -EPROTO;
	if (*json->at == '-' || digit(json))
		return wanted && !last ? -EPROTO : number(json, last);
	if (take(json, '{'))
		return last ? -EPROTO : list(json, depth, wanted, '}');
	/* What is wanted is a number, and inside of it an object. */
	if (wanted)
		return -EPROTO;
	switch (*json->at) {
	case '[':
		json->at++;
		return list(json, depth, false, ']');
	case '"':
		return string(json, &text, &bytes);
	case 't':
		return word(json, "true");
	case 'f':
		return word(json, "false");
	case 'n':
		return word(json, "null");
	default:
		return -EPROTO;
	}
}

int kvd_vfio_json_number(const char *text, size_t bytes, const char *const *path, uint64_t *out)
{
	struct json json = {.at = text, .end = text + bytes, .path = path};
	int err = value(&json, 0, true);

	if (err)
		return err;
	skip_space(&json);
	if (json.at != json.end)
		return -EPROTO;
	if (!json.found)
		return -ENOENT;
	*out = json.number;
	return 0;
}
