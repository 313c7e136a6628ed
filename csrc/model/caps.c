/*
 * The JSON text of a VERSION message. Only its capabilities matter, but all of it must be JSON: a client that sends
 * anything else is not one that we could understand later.
 */
#include <errno.h>
#include <string.h>

#include "model/internal.h"

enum {
	DEPTH_MAX = 8,
	NAME_BYTES_MAX = 32,
};

/* What a value is; only what a capability can be is kept. */
enum kind {
	KIND_OTHER,
	KIND_NUMBER, /* not negative, no fraction, no exponent, fits 64 bits */
	KIND_BOOL,
	KIND_OBJECT,
};

struct value {
	enum kind kind;
	uint64_t number;
};

struct parser {
	const char *at;
	const char *end;
	struct kvd_card_caps *caps;
};

typedef bool (*on_member)(struct parser *parser, const char *name, uint32_t depth);

static bool skip_value(struct parser *parser, uint32_t depth, struct value *out);

static char look(struct parser *parser)
{
	while (parser->at < parser->end && memchr(" \t\r\n", *parser->at, 4))
		parser->at++;
	return parser->at < parser->end ? *parser->at : '\0';
}

static bool take(struct parser *parser, char wanted)
{
	if (look(parser) != wanted || parser->at == parser->end)
		return false;
	parser->at++;
	return true;
}

static bool is_digit(const struct parser *parser)
{
	return parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9';
}

/* A string; its first bytes are kept, escapes as they stand (no name of ours has any). */
static bool take_string(struct parser *parser, char *out)
{
	size_t used = 0;

	if (!take(parser, '"'))
		return false;
	for (; parser->at < parser->end && *parser->at != '"'; parser->at++) {
		if ((unsigned char)*parser->at < ' ')
			return false;
		if (out && used < NAME_BYTES_MAX - 1)
			out[used++] = *parser->at;
		if (*parser->at == '\\' && ++parser->at == parser->end)
			return false;
	}
	if (out)
		out[used] = '\0';
	return take(parser, '"');
}

static bool take_digits(struct parser *parser, uint64_t *number, bool *fits)
{
	const char *from = parser->at;

	*number = 0;
	*fits = true;
	for (; is_digit(parser); parser->at++) {
		uint64_t digit = (uint64_t)(*parser->at - '0');

		*fits = *fits && *number <= (UINT64_MAX - digit) / 10;
		*number = *number * 10 + digit;
	}
	return parser->at > from;
}

static bool take_number(struct parser *parser, struct value *out)
{
	bool natural = !take(parser, '-');
	uint64_t ignored;
	bool fits;

	if (!take_digits(parser, &out->number, &fits))
		return false;
	natural = natural && fits;
	if (parser->at < parser->end && *parser->at == '.') {
		parser->at++;
		natural = false;
		if (!take_digits(parser, &ignored, &fits))
			return false;
	}
	if (parser->at < parser->end && (*parser->at == 'e' || *parser->at == 'E')) {
		parser->at++;
		natural = false;
		if (parser->at < parser->end && (*parser->at == '+' || *parser->at == '-'))
			parser->at++;
		if (!take_digits(parser, &ignored, &fits))
			return false;
	}
	out->kind = natural ? KIND_NUMBER : KIND_OTHER;
	return true;
}

static bool take_word(struct parser *parser, const char *word)
{
	size_t bytes = strlen(word);

	if ((size_t)(parser->end - parser->at) < bytes || memcmp(parser->at, word, bytes))
		return false;
	parser->at += bytes;
	return true;
}

static bool skip_member(struct parser *parser, const char *name, uint32_t depth)
{
	struct value ignored;

	(void)name;
	return skip_value(parser, depth, &ignored);
}

static bool take_object(struct parser *parser, uint32_t depth, on_member member)
{
	char name[NAME_BYTES_MAX];

	if (depth > DEPTH_MAX || !take(parser, '{'))
		return false;
	if (take(parser, '}'))
		return true;
	do {
		if (!take_string(parser, name) || !take(parser, ':') || !member(parser, name, depth + 1))
			return false;
	} while (take(parser, ','));
	return take(parser, '}');
}

static bool skip_array(struct parser *parser, uint32_t depth)
{
	struct value ignored;

	if (depth > DEPTH_MAX || !take(parser, '['))
		return false;
	if (take(parser, ']'))
		return true;
	do {
		if (!skip_value(parser, depth + 1, &ignored))
			return false;
	} while (take(parser, ','));
	return take(parser, ']');
}

static bool skip_value(struct parser *parser, uint32_t depth, struct value *out)
{
	*out = (struct value){KIND_OTHER, 0};
	switch (look(parser)) {
	case '{':
		out->kind = KIND_OBJECT;
		return take_object(parser, depth, skip_member);
	case '[':
		return skip_array(parser, depth);
	case '"':
		return take_string(parser, NULL);
	case 't':
		*out = (struct value){KIND_BOOL, 1};
		return take_word(parser, "true");
	case 'f':
		out->kind = KIND_BOOL;
		return take_word(parser, "false");
	case 'n':
		return take_word(parser, "null");
	default:
		return take_number(parser, out);
	}
}

static bool number_member(struct parser *parser, uint32_t depth, uint64_t min, uint64_t *out, bool *has)
{
	struct value value;

	if (!skip_value(parser, depth, &value) || value.kind != KIND_NUMBER || value.number < min)
		return false;
	if (out)
		*out = value.number;
	*has = true;
	return true;
}

static bool bool_member(struct parser *parser, uint32_t depth, bool *out)
{
	struct value value;

	if (!skip_value(parser, depth, &value) || value.kind != KIND_BOOL)
		return false;
	*out = value.number != 0;
	return true;
}

static bool twin_member(struct parser *parser, const char *name, uint32_t depth)
{
	if (!strcmp(name, "supported"))
		return bool_member(parser, depth, &parser->caps->twin_socket);
	return skip_member(parser, name, depth);
}

static bool caps_member(struct parser *parser, const char *name, uint32_t depth)
{
	struct kvd_card_caps *caps = parser->caps;

	if (!strcmp(name, "max_msg_fds"))
		return number_member(parser, depth, 0, &caps->max_msg_fds, &caps->has_msg_fds);
	if (!strcmp(name, "max_data_xfer_size"))
		return number_member(parser, depth, 1, &caps->max_data_xfer_bytes, &caps->has_xfer);
	if (!strcmp(name, "max_dma_maps"))
		return number_member(parser, depth, 0, NULL, &caps->has_dma_maps);
	if (!strcmp(name, "pgsizes"))
		return number_member(parser, depth, 0, NULL, &caps->has_pgsizes);
	if (!strcmp(name, "write_multiple"))
		return bool_member(parser, depth, &caps->write_multiple);
	if (!strcmp(name, "twin_socket"))
		return take_object(parser, depth, twin_member);
	return skip_member(parser, name, depth);
}

static bool top_member(struct parser *parser, const char *name, uint32_t depth)
{
	if (!strcmp(name, "capabilities"))
		return take_object(parser, depth, caps_member);
	return skip_member(parser, name, depth);
}

int kvd_card_caps_parse(const char *text, size_t bytes, struct kvd_card_caps *out)
{
	struct parser parser = {text, text + bytes, out};

	*out = (struct kvd_card_caps){
		.max_msg_fds = KVD_VFU_DEFAULT_MSG_FDS,
		.max_data_xfer_bytes = KVD_VFU_DEFAULT_XFER_BYTES,
	};
	if (!bytes)
		return 0;
	if (bytes > KVD_VFU_VERSION_BYTES_MAX || text[bytes - 1] != '\0')
		return -EINVAL;
	parser.end--;
	if (memchr(text, '\0', bytes - 1) || !take_object(&parser, 1, top_member))
		return -EINVAL;
	return look(&parser) || parser.at != parser.end ? -EINVAL : 0;
}
