// Only carries the precompiled header (TierkeepLibrary.cmake).
