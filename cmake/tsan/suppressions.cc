// What ThreadSanitizer must not report. Read by its runtime, which finds this function by its name.

extern "C" const char* __tsan_default_suppressions();

// Debian's cpp-httplib isn't instrumented, so that the sanitizer doesn't see how its threads agree
// on who makes its function-local statics (the set of method names), and takes the first use by
// another thread for a race. What the library does itself is left out; what it calls of ours is
// not.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libcpp-httplib.so\n";
}
