# shellcheck shell=bash
# Completion of baudway in bash: source this file, or put it into /usr/share/bash-completion/completions/baudway.
# The command itself knows the candidates.
_baudway() {
  local line word current ending option='' breaks='' kept='' words=() endings=() candidates=()
  # Not COMP_WORDS: bash divides words at : and =, which are parts of URLs.
  read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
  [[ ${COMP_LINE:0:COMP_POINT} != *[[:space:]] ]] || words+=('')
  current=${words[-1]}
  while IFS= read -r line; do
    if [[ $line == :files* ]]; then
      [[ $current != --*=* ]] || option=${current%%=*}=
      IFS=$'\t' read -ra endings <<<"${line#:files}"
      if ((${#endings[@]})); then
        mapfile -t candidates < <(
          compgen -d -P "$option" -- "${current#"$option"}"
          for ending in "${endings[@]}"; do compgen -f -X "!*.$ending" -P "$option" -- "${current#"$option"}"; done
        )
      else
        mapfile -t candidates < <(compgen -f -P "$option" -- "${current#"$option"}")
      fi
      compopt -o filenames -o nospace 2>/dev/null  # marks folders
    else
      candidates+=("${line%%$'\t'*}")
    fi
  done < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
  # Readline replaces only what is behind the last of these letters.
  [[ $COMP_WORDBREAKS != *:* ]] || breaks+=:
  [[ $COMP_WORDBREAKS != *=* ]] || breaks+="="
  [[ -z $breaks || ! $current =~ ^.*[$breaks] ]] || kept=${BASH_REMATCH[0]}
  COMPREPLY=()
  for word in "${candidates[@]}"; do COMPREPLY+=("${word#"$kept"}"); done
}
complete -F _baudway baudway
