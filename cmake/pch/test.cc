// Only carries the precompiled header (TierkeepLibrary.cmake).
int main() { return 0; }
