// The exit statuses of every program's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace tierkeep {

// Parses. The exit status where the program ends here: 0 after --help and the like, 2 for bad
// usage; what is wrong has been printed.
inline std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return 2;
  }
  return std::nullopt;
}

}  // namespace tierkeep
