"""Finds the functions of a C++ file by matching braces: enough for a size limit, not a parser.

Lambdas and local classes belong to the function around them. Function templates, members defined
in their class, constructors with initializer lists and GoogleTest's TEST macros are found.
"""

import re

_TOKENS = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
      | ^[ \t]*\#(?:\\\n|[^\n])*
    """, re.X | re.S | re.M)
_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")
# A constructor's initializer list up to a member that is initialized with braces.
_INITIALIZER = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:).*[\w>]\s*$", re.S)


def blank_out(text):
    """Comments, literals and preprocessor lines become spaces; lines stay where they are."""
    return _TOKENS.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def _name(header):
    """The function's name as far as a reader needs it: `Class::Name`, or TEST's two arguments."""
    test = re.search(r"\b(?:TYPED_)?TEST(?:_[FP])?\s*\(\s*(\w+)\s*,\s*(\w+)", header)
    if test:
        return f"{test.group(1)}.{test.group(2)}"
    match = re.search(r"((?:\w+::)*~?(?:operator\s*[^\s(]+|operator\s*\(\)|\w+))\s*\(", header)
    return re.sub(r"\s+", "", match.group(1)) if match else "?"


def _is_function(header):
    if "(" not in header or header.rstrip().endswith(("=", ",", "(")):
        return False
    # `struct X f() {` is no style of this project, `class alignas(8) X {` is.
    outside = re.sub(r"\([^()]*\)|<[^<>]*>", "", header)
    return not _SCOPE.search(outside) or bool(re.search(r"\)\s*(?:const\b|noexcept\b|->)", header))


def functions(text):
    """Yields (name, line of the opening brace, lines from there to the closing brace)."""
    code = blank_out(text)
    stack = []  # of "scope", "data" or ("function", name, line)
    header_start = 0
    line = 1
    for i, c in enumerate(code):
        if c == "\n":
            line += 1
        elif c == ";" and all(s == "scope" for s in stack):
            header_start = i + 1
        elif c == "{":
            if any(s != "scope" for s in stack):
                stack.append("data")  # inside a function or an initializer: nothing to decide
                continue
            header = code[header_start:i]
            if _INITIALIZER.search(header):
                stack.append("initializer")
                continue
            if _is_function(header):
                stack.append(("function", _name(header), line))
            elif _SCOPE.search(header):
                stack.append("scope")
            else:
                stack.append("data")
            header_start = i + 1
        elif c == "}" and stack:
            top = stack.pop()
            if isinstance(top, tuple):
                yield top[1], top[2], line - top[2] + 1
            if top != "initializer" and all(s == "scope" for s in stack):
                header_start = i + 1
