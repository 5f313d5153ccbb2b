# Completion of baudway in fish: put this file into /usr/share/fish/vendor_completions.d or ~/.config/fish/completions.
# The command itself knows the candidates.
function __baudway_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] complete -- $words[2..-1] $current 2>/dev/null)
        if string match -q ':files*' -- $line
            set -l option (string match -r -- '^--[^=]*=' $current)
            set -l endings (string join '|' -- (string split \t -- $line)[2..-1])
            set -l names '.*'
            test -z "$endings"; or set names '.*(?:/|\.(?:'$endings'))(?:\t.*)?$'
            for file in (__fish_complete_path (string replace -- "$option" '' $current) | string match -r -- $names)
                echo "$option$file"
            end
        else
            echo $line
        end
    end
end
complete -c baudway -f -a '(__baudway_complete)'
